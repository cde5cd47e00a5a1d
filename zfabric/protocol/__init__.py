"""What is said: ids, task rows, messages and their codec, effects, and the contract every machine keeps."""
