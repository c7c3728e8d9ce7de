# User data for a GPU instance outside a cluster: cloud-init/bare/user-data.yaml with the URL and the digest of the binary. The
# module has no provider, so it works on each cloud, for images with cloud-init. See docs/terraform.md.

terraform {
  required_version = ">= 1.5"
}

variable "url" {
  type        = string
  description = "The URL of the gpu-bootstrap binary."
  validation {
    condition     = can(regex("^https://[^'[:space:]]+$", var.url))
    error_message = "The URL must start with https:// and must not contain spaces or quotes."
  }
}

variable "sha256" {
  type        = string
  description = "The SHA-256 of the binary, not of its archive."
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.sha256))
    error_message = "The SHA-256 must have 64 hexadecimal digits."
  }
}

locals {
  # A package has the directory cloud-init in its examples.
  packaged = "${path.module}/../cloud-init/bare/user-data.yaml"
  template = file(fileexists(local.packaged) ? local.packaged : "${path.module}/../../cloud-init/bare/user-data.yaml")
}

output "user_data" {
  description = "The user data of the instance. It contains no secret."
  value       = replace(replace(local.template, "@ADDRESS@", var.url), "@SHA-256@", var.sha256)

  precondition {
    condition     = strcontains(local.template, "@ADDRESS@") && strcontains(local.template, "@SHA-256@")
    error_message = "The template contains the URL of its release instead of a placeholder. Use the module in a clone of the repository."
  }
}
