"""What an operator may set, and where a value comes from: flag, file, environment, default."""
