# A GPU node pool of Oracle's Kubernetes service (OKE). The image of the nodes contains a driver, and a node joins the cluster only
# after each of its GPUs has computed: user-data.sh. See docs/other-clouds.md. Source of the arguments:
# https://registry.terraform.io/providers/oracle/oci/latest/docs/resources/containerengine_node_pool

terraform {
  required_version = ">= 1.5"
  required_providers {
    oci = {
      source = "oracle/oci"
    }
  }
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

variable "compartment_id" {
  type        = string
  description = "The OCID of the compartment."
}

variable "cluster_id" {
  type        = string
  description = "The OCID of the cluster."
}

variable "kubernetes_version" {
  type        = string
  description = "The version of Kubernetes on the nodes."
}

variable "image_id" {
  type        = string
  description = "The OCID of an OKE image with a GPU driver."
}

variable "shape" {
  type        = string
  description = "A GPU shape. `gpu-bootstrap compat --gpu SHAPE` lists its GPUs."
  default     = "BM.GPU.H100.8"
}

variable "availability_domain" {
  type        = string
  description = "The availability domain of the nodes."
}

variable "subnet_id" {
  type        = string
  description = "The OCID of the subnet of the nodes."
}

variable "size" {
  type        = number
  description = "The number of nodes."
  default     = 1
}

locals {
  script = replace(replace(file("${path.module}/user-data.sh"), "@ADDRESS@", var.url), "@SHA-256@", var.sha256)
}

resource "oci_containerengine_node_pool" "gpu" {
  cluster_id         = var.cluster_id
  compartment_id     = var.compartment_id
  kubernetes_version = var.kubernetes_version
  name               = "gpu"
  node_shape         = var.shape

  node_config_details {
    size = var.size
    placement_configs {
      availability_domain = var.availability_domain
      subnet_id           = var.subnet_id
    }
  }

  node_source_details {
    image_id    = var.image_id
    source_type = "IMAGE"
  }

  node_metadata = {
    user_data = base64encode(local.script)
  }
}
