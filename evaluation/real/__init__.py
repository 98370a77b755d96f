"""Where visual tokens go on real pictures, against boxes that were labelled by eye."""
