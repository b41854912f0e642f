"""Who is in the group: health, election and views, as one pure state machine."""
