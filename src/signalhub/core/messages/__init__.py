"""Messages on their way: tell, ask, publish, broadcast."""
