"""Signal Hub: messages between actors that can be counted on."""
