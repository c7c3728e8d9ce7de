// Prints the result of the real nodeadm for the user data on standard input, as JSON: the merged NodeConfig, and the kubelet files
// that nodeadm writes. Compiled in nodeadm's module, because the packages are internal, and run in a separate root directory
// (record.sh).
//
// It makes the same calls as `nodeadm init --skip run` (cmd/nodeadm/init/init.go), without systemd: reads the user data from a
// metadata service, which this program serves, validates it, and configures containerd and the kubelet. The instance is fictional.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/awslabs/amazon-eks-ami/nodeadm/internal/api"
	"github.com/awslabs/amazon-eks-ami/nodeadm/internal/configprovider"
	"github.com/awslabs/amazon-eks-ami/nodeadm/internal/containerd"
	"github.com/awslabs/amazon-eks-ami/nodeadm/internal/kubelet"
)

const arguments = "NODEADM_KUBELET_ARGS="

type recording struct {
	Spec api.NodeConfigSpec `json:"spec"`
	// The part of the kubelet configuration that nodeadm takes from the NodeConfig.
	DropIn json.RawMessage `json:"drop-in,omitempty"`
	// The last kubelet arguments, one for each flag in the NodeConfig.
	Last string `json:"last-arguments"`
	// The IP address of the cluster DNS, which nodeadm derives from the service network.
	DNS        json.RawMessage `json:"cluster-dns"`
	Kubeconfig string          `json:"kubeconfig"`
}

func serve(userData []byte) error {
	responses := map[string]string{
		"/latest/user-data": string(userData),
		"/latest/dynamic/instance-identity/document": `{"instanceId": "i-1", "instanceType": "g5.xlarge",
			"region": "eu-central-1", "availabilityZone": "eu-central-1b"}`,
		"/latest/meta-data/mac":        "02:00:00:00:00:01",
		"/latest/meta-data/local-ipv4": "10.0.2.100",
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	handler := func(to http.ResponseWriter, request *http.Request) {
		if request.URL.Path == "/latest/api/token" {
			to.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
			io.WriteString(to, "token")
			return
		}
		text, known := responses[request.URL.Path]
		if !known {
			http.NotFound(to, request)
			return
		}
		io.WriteString(to, text)
	}
	go http.Serve(listener, http.HandlerFunc(handler))
	return os.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://"+listener.Addr().String())
}

func process(userData []byte) (*recording, error) {
	if err := serve(userData); err != nil {
		return nil, err
	}
	config, err := configprovider.NewUserDataConfigProvider().Provide()
	if err != nil {
		return nil, err
	}
	instance, err := api.GetIMDSInstanceDetails(context.Background(), imds.New(imds.Options{}))
	if err != nil {
		return nil, err
	}
	config.Status.Instance = *instance
	config.Status.Defaults.SandboxImage = "pause"
	if err := api.ValidateNodeConfig(config); err != nil {
		return nil, err
	}
	if err := containerd.NewContainerdDaemon(nil).Configure(config); err != nil {
		return nil, err
	}
	if err := kubelet.NewKubeletDaemon(nil).Configure(config); err != nil {
		return nil, err
	}
	return read(config)
}

func read(config *api.NodeConfig) (*recording, error) {
	result := recording{Spec: config.Spec}
	const root = "/etc/kubernetes/kubelet/"
	drop, err := os.ReadFile(root + "config.json.d/00-nodeadm.conf")
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	result.DropIn = drop
	whole, err := os.ReadFile(root + "config.json")
	if err != nil {
		return nil, err
	}
	var own struct {
		ClusterDNS json.RawMessage `json:"clusterDNS"`
	}
	if err := json.Unmarshal(whole, &own); err != nil {
		return nil, err
	}
	result.DNS = own.ClusterDNS
	kubeconfig, err := os.ReadFile("/var/lib/kubelet/kubeconfig")
	if err != nil {
		return nil, err
	}
	result.Kubeconfig = string(kubeconfig)
	environment, err := os.ReadFile("/etc/eks/kubelet/environment")
	if err != nil {
		return nil, err
	}
	// The order of the other arguments is random.
	for _, line := range strings.Split(string(environment), "\n") {
		if text, found := strings.CutPrefix(line, arguments); found {
			words := strings.Fields(strings.TrimSuffix(strings.TrimPrefix(text, `"`), `"`))
			result.Last = strings.Join(words[len(words)-len(config.Spec.Kubelet.Flags):], " ")
		}
	}
	return &result, nil
}

func main() {
	// nodeadm runs `kubelet --version`, because the files depend on the version.
	if filepath.Base(os.Args[0]) == "kubelet" {
		fmt.Println("Kubernetes v1.34.4")
		return
	}
	userData, err := io.ReadAll(os.Stdin)
	if _, missing := os.Stat("/etc/passwd"); missing == nil {
		err = fmt.Errorf("this program writes to /etc: run it in a separate root directory")
	}
	if err == nil {
		var result *recording
		if result, err = process(userData); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(result)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
