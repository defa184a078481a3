"""Who is there: sessions, registrations, leases."""
