"""Circuit discovery: edge attribution, edge selection, running a circuit alone, faithfulness."""
