# An Amazon image for GPU nodes. The build needs no GPU: gpu-bootstrap installs everything except what needs a GPU, and the
# first boot of each instance finishes and validates the node. See docs/packer.md.

packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3.0"
    }
  }
}

variable "region" {
  type = string
}

variable "source_ami" {
  type        = string
  description = "The image to start from: Ubuntu, Debian, AlmaLinux or Amazon Linux, with cloud-init."
}

variable "ssh_username" {
  type        = string
  description = "The user of the image: `ubuntu`, `admin` (Debian), `ec2-user` (AlmaLinux, Amazon Linux)."
  default     = "ubuntu"
}

variable "url" {
  type        = string
  description = "The URL of the gpu-bootstrap binary."
  validation {
    condition     = can(regex("^https://", var.url))
    error_message = "The URL must start with https://."
  }
}

variable "sha256" {
  type        = string
  description = "The SHA-256 of the binary."
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.sha256))
    error_message = "The SHA-256 must have 64 hexadecimal digits."
  }
}

variable "gpu" {
  type        = string
  description = "The PCI ID of the GPUs in the instances, as printed by `gpu-bootstrap compat --gpu NAME`."
  default     = "10de:2330"
}

variable "root_device" {
  type        = string
  description = "The root device of the image: `/dev/sda1` (Ubuntu, some images of AlmaLinux) or `/dev/xvda` (Debian, Amazon Linux)."
  default     = "/dev/sda1"
}

source "amazon-ebs" "gpu_node" {
  region        = var.region
  source_ami    = var.source_ami
  instance_type = "c7i.2xlarge"
  ssh_username  = var.ssh_username
  ami_name      = "gpu-node-{{timestamp}}"

  # The driver and the container runtime need several gigabytes. The price of gp3 includes these IOPS and throughput.
  launch_block_device_mappings {
    device_name           = var.root_device
    volume_size           = 30
    volume_type           = "gp3"
    iops                  = 3000
    throughput            = 125
    delete_on_termination = true
  }
}

build {
  sources = ["source.amazon-ebs.gpu_node"]

  # Settings for all instances. The settings of one instance are in its user data.
  provisioner "file" {
    source      = "config.toml"
    destination = "/tmp/config.toml"
  }

  provisioner "shell" {
    inline = [
      "set -eu",
      "cloud-init status --wait || [ $? -eq 2 ]",
      "curl --proto '=https' --tlsv1.2 -fsSLo /tmp/gpu-bootstrap '${var.url}'",
      "echo '${var.sha256}  /tmp/gpu-bootstrap' | sha256sum -c",
      "sudo install -m 0755 /tmp/gpu-bootstrap /usr/local/bin/gpu-bootstrap",
      "sudo install -D -m 0600 /tmp/config.toml /etc/gpu-bootstrap/config.toml",
      "sudo /usr/local/bin/gpu-bootstrap install --image --assume-gpu ${var.gpu}",
      "rm /tmp/gpu-bootstrap /tmp/config.toml",
    ]
  }
}
