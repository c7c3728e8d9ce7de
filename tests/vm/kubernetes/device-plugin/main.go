// A fake of NVIDIA's device plugin without a C library, for all machines (the case `join-mig` has the real one). It registers the
// devices that `nvidia-smi -L` lists, under the names of the plugin's strategies for MIG (`--mig-strategy`;
// buildDeviceMapFromConfigResources in internal/rm/device_map.go, and internal/rm/rm.go, of NVIDIA/k8s-device-plugin v0.20.0). A
// container gets its devices as in the plugin's default strategy "envvar" (see its README): through NVIDIA_VISIBLE_DEVICES, which
// nvidia's container runtime reads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	vendor = "nvidia.com/"
	whole  = "gpu"
)

// A line has the form `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-…)` or `  MIG 1g.10gb     Device  0: (UUID: MIG-…)`, after the GPU of
// the MIG device.
var listed = regexp.MustCompile(`(?m)^(?:GPU|  MIG +(\S+) ).*\(UUID: ((?:GPU|MIG)-[^)]+)\)`)

// Returns the devices in the output of `nvidia-smi -L` by resource, without the vendor.
func resources(output, strategy string) (map[string][]string, error) {
	found := map[string][]string{}
	profiles := map[string]bool{}
	gpus, last := map[string]bool{}, ""
	for _, line := range listed.FindAllStringSubmatch(output, -1) {
		profile, uuid := line[1], line[2]
		switch {
		case profile == "":
			last = uuid
			gpus[last] = false
			found[whole] = append(found[whole], uuid)
		case strategy == "none":
		default:
			profiles[profile] = true
			if !gpus[last] {
				gpus[last] = true
				found[whole] = slices.DeleteFunc(found[whole], func(one string) bool { return one == last })
			}
			name := whole
			if strategy == "mixed" {
				name = "mig-" + strings.ReplaceAll(profile, "+", ".")
			}
			found[name] = append(found[name], uuid)
		}
	}
	if strategy == "single" && len(profiles) > 0 {
		if len(profiles) > 1 {
			return nil, errors.New("more than one MIG device type present on node")
		}
		for _, split := range gpus {
			if !split {
				return nil, errors.New("all devices on the node must be configured with the same migEnabled value")
			}
		}
	}
	maps.DeleteFunc(found, func(_ string, devices []string) bool { return len(devices) == 0 })
	return found, nil
}

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

// Serves the devices of one resource and registers it. A resource has its own server and socket, as in the plugin.
func serve(kubelet api.RegistrationClient, name string, uuids []string, stopped chan<- error) error {
	served := &plugin{}
	for _, uuid := range uuids {
		served.devices = append(served.devices, &api.Device{ID: uuid, Health: api.Healthy})
	}
	socket := "nvidia-" + name + ".sock"
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
	go func() { stopped <- server.Serve(listener) }()

	limit, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = kubelet.Register(limit, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     socket,
		ResourceName: vendor + name,
	}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	fmt.Printf("registered %d %s\n", len(uuids), vendor+name)
	return nil
}

func run() error {
	strategy := flag.String("mig-strategy", "none", "none, single or mixed")
	flag.Parse()
	if !slices.Contains([]string{"none", "single", "mixed"}, *strategy) {
		return fmt.Errorf("unknown strategy %q", *strategy)
	}
	output, err := exec.Command("nvidia-smi", "-L").Output()
	if err != nil {
		return fmt.Errorf("nvidia-smi: %w", err)
	}
	found, err := resources(string(output), *strategy)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return errors.New("nvidia-smi lists no devices")
	}
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	kubelet := api.NewRegistrationClient(connection)
	stopped := make(chan error, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if err := serve(kubelet, name, found[name], stopped); err != nil {
			return err
		}
	}
	return <-stopped
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "device-plugin:", err)
		os.Exit(1)
	}
}
