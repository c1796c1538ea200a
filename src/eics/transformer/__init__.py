"""A transformer's nodes as functions and linear maps, from weights and one recorded forward pass. Knows no family."""
