"""`look`: which parts of an image a prediction depends on, whether the maps are faithful, what the model learned."""
