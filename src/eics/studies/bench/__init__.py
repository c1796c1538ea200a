"""What a score costs in forward passes of the model: time, memory, products and FLOPs on reference circuits."""
