"""Left atria: synthetic ones, and the parts and fibres of any."""
