"""Web page that shows a run while it goes on: access rules, viewers, server. Needs the extra `web`."""
