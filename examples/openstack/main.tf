# A GPU instance on OpenStack that prepares itself at its first boot, with the user data of ../terraform. The flavor must have a
# GPU by PCI passthrough. Credentials are in `clouds.yaml` or in OS_ variables. See docs/other-clouds.md. Source of the arguments:
# https://registry.terraform.io/providers/terraform-provider-openstack/openstack/latest/docs/resources/compute_instance_v2

terraform {
  required_version = ">= 1.5"
  required_providers {
    openstack = {
      source = "terraform-provider-openstack/openstack"
    }
  }
}

variable "url" {
  type        = string
  description = "The URL of the gpu-bootstrap binary."
}

variable "sha256" {
  type        = string
  description = "The SHA-256 of the binary, not of its archive."
}

variable "image" {
  type        = string
  description = "The name of an image with cloud-init and a supported system, such as Ubuntu 24.04."
}

variable "flavor" {
  type        = string
  description = "The name of a flavor with a GPU."
}

variable "network" {
  type        = string
  description = "The name of the network."
}

variable "key_pair" {
  type        = string
  description = "The name of the SSH key pair."
}

module "gpu_bootstrap" {
  source = "../terraform"
  url    = var.url
  sha256 = var.sha256
}

resource "openstack_compute_instance_v2" "gpu" {
  name        = "gpu-1"
  image_name  = var.image
  flavor_name = var.flavor
  key_pair    = var.key_pair
  user_data   = module.gpu_bootstrap.user_data
  # Also delivers the user data without a metadata service.
  config_drive = true

  network {
    name = var.network
  }
}
