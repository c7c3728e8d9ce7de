// A fake of NVIDIA's device plugin, which has no Go module: it registers each GPU that `nvidia-smi -L` lists as
// nvidia.com/gpu. A container gets its GPUs as in the plugin's default strategy "envvar" (see its README): through
// NVIDIA_VISIBLE_DEVICES, which nvidia's container runtime reads.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	socket   = "testbed-gpu.sock"
)

// A line has the form `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-…)`.
var listed = regexp.MustCompile(`\(UUID: (GPU-[^)]+)\)`)

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, one := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(one.DevicesIds, ",")},
		})
	}
	return response, nil
}

func run() error {
	output, err := exec.Command("nvidia-smi", "-L").Output()
	if err != nil {
		return fmt.Errorf("nvidia-smi: %w", err)
	}
	served := &plugin{}
	for _, found := range listed.FindAllStringSubmatch(string(output), -1) {
		served.devices = append(served.devices, &api.Device{ID: found[1], Health: api.Healthy})
	}
	path := api.DevicePluginPath + socket
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, served)
	stopped := make(chan error, 1)
	go func() { stopped <- server.Serve(listener) }()

	kubelet, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	limit, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(kubelet).Register(limit, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     socket,
		ResourceName: resource,
	}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	fmt.Printf("registered %d %s\n", len(served.devices), resource)
	return <-stopped
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "device-plugin:", err)
		os.Exit(1)
	}
}
