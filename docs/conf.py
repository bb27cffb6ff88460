"""The pages of this folder as a site: `make docs`."""

project = "gfunk"
author = "the authors of gfunk"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "gfunk"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
highlight_language = "text"
default_role = "code"  # docstrings quote names as `name`

# Sections can be linked to, as on GitHub: [limits](design.md#the-spectrum).
myst_heading_anchors = 3

# What is inherited, torch's modules above all, is described elsewhere.
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
add_module_names = False


def with_readable_defaults(app, what, name, thing, options, signature, returned):
    """What a record's factory makes is no expression, and would leave the whole signature unread."""
    return signature and signature.replace("<factory>", "..."), returned


def setup(app):
    app.connect("autodoc-process-signature", with_readable_defaults)
