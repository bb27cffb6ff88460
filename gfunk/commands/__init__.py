"""What each command does; torch is loaded only by those that need it, so that --help answers at once."""
