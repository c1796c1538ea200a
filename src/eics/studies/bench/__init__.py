"""What a score costs, in forward passes of the model: timing, memory, products and FLOPs on reference circuits."""
