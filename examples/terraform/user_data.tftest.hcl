variables {
  url    = "https://files.example.com/gpu-bootstrap"
  sha256 = "ab00000000000000000000000000000000000000000000000000000000000000"
}

run "all_values_are_set" {
  command = plan

  assert {
    condition     = startswith(output.user_data, "#cloud-config\n")
    error_message = "The first line must be #cloud-config."
  }

  assert {
    condition     = strcontains(output.user_data, "'https://files.example.com/gpu-bootstrap'")
    error_message = "The user data must contain the URL."
  }

  assert {
    condition     = !strcontains(output.user_data, "@ADDRESS@") && !strcontains(output.user_data, "@SHA-256@")
    error_message = "The URL or the SHA-256 is missing."
  }
}

run "http_is_rejected" {
  command = plan

  variables {
    url = "http://files.example.com/gpu-bootstrap"
  }

  expect_failures = [var.url]
}

run "short_digest_is_rejected" {
  command = plan

  variables {
    sha256 = "ab"
  }

  expect_failures = [var.sha256]
}
