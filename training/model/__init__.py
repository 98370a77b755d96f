"""The bundled model and its batches."""
