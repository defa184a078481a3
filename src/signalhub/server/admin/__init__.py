"""The API of people who operate a hub, under `/api/admin/v1`."""
