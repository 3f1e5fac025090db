module gitlab.com/gitlab-org/labkit/v2

go 1.26
