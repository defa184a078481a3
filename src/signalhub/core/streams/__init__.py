"""What is kept: durable topics, mailboxes, dead letters."""
