# A job that prints the GPUs of a node. The node needs Docker with the nvidia runtime, which gpu-bootstrap configures, and
# Nomad's device plugin nomad-device-nvidia. See docs/docker-nomad.md.

job "nvidia-smi" {
  type = "batch"

  group "gpu" {
    task "nvidia-smi" {
      driver = "docker"

      config {
        image   = "ubuntu"
        command = "nvidia-smi"
      }

      resources {
        device "nvidia/gpu" {
          count = 1
        }
      }
    }
  }
}
