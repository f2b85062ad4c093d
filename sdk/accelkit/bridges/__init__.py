"""The same plugins inside other frameworks."""
