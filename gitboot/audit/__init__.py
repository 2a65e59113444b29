"""What a fleet's history and commits say of one server or image: explain, history, images."""
