"""What people see of the hub as a whole: counters, gauges, and every subscription at a glance."""
