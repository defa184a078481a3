"""Commands for rooms and inboxes."""
