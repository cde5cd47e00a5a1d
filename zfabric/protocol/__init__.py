"""What processes send each other: ids, task rows, messages and their codec; effects; the contract of machines and shells."""
