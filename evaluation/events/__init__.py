"""The suite `stream-events`: what happens in a scene while a model is asked about it again and again."""
