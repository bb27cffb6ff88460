"""The browser viewer: a page on loopback where a click on an atrium starts the predicted wave (docs/viewer.md)."""
