"""Operators' booked bytes beside what torch's own samples allocate."""
