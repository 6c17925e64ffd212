"""Many runs from one command."""
