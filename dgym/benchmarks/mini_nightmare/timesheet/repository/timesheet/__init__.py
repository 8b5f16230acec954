"""From hours worked to invoices."""
