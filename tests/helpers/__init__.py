"""What several test files share: slow truths, data that is made, servers, clusters, crashes."""
