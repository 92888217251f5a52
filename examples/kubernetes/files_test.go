// SPDX-License-Identifier: Apache-2.0

// Package kubernetes has files for clusters, and only tests of Go: that each
// file is what the published types say, and that the files name what there is.
package kubernetes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// folders are what kubectl apply -k takes.
var folders = []string{"shared", "sriov", "dra", "exporter", "selftest", "mesh"}

// cluster is all objects of the folders.
type cluster struct {
	configMaps []*corev1.ConfigMap
	pods       []pod
	daemonSets []*appsv1.DaemonSet
	services   []*corev1.Service
	monitors   []*monitoringv1.ServiceMonitor
	networks   []*networkAttachmentDefinition
	classes    []*resourcev1.DeviceClass
	templates  []*resourcev1.ResourceClaimTemplate
	plugins    map[string][]plugin // by the name of their network
}

// pod is a pod, or the template of one.
type pod struct {
	name, namespace string
	annotations     map[string]string
	labels          map[string]string
	spec            corev1.PodSpec
}

// plugin is a CNI plugin of a network.
type plugin struct {
	kind   string
	static bool // the pods say their addresses
}

// files are the files of the folders, by their paths.
type files map[string]string

func readFiles(t *testing.T) files {
	t.Helper()
	all := files{}
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		for _, e := range entries {
			path := filepath.Join(folder, e.Name())
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			all[path] = string(text)
		}
	}
	return all
}

// build does what kubectl apply -k does with each folder, but for sending the
// objects, which it decodes strictly.
func (all files) build() (*cluster, error) {
	c := &cluster{plugins: map[string][]plugin{}}
	fs := filesys.MakeFsInMemory()
	for path, text := range all {
		if err := fs.WriteFile(path, []byte(text)); err != nil {
			return nil, err
		}
	}
	for _, folder := range folders {
		objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, folder)
		if err != nil {
			return nil, err
		}
		for _, object := range objects.Resources() {
			text, err := object.AsYAML()
			if err != nil {
				return nil, err
			}
			if err := c.add(text); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", folder, object.CurId(), err)
			}
		}
	}
	return c, nil
}

// decode decodes an object strictly and appends it to a list of such.
func decode[T any](list *[]*T, text []byte) (*T, error) {
	object := new(T)
	text, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	if err := strictly(text, object); err != nil {
		return nil, err
	}
	*list = append(*list, object)
	return object, nil
}

// add decodes an object by its version and kind.
func (c *cluster) add(text []byte) (err error) {
	of := metav1.TypeMeta{}
	if err := yaml.Unmarshal(text, &of); err != nil {
		return err
	}
	switch kind := of.APIVersion + " " + of.Kind; kind {
	case "v1 ConfigMap":
		_, err = decode(&c.configMaps, text)
	case "v1 Service":
		_, err = decode(&c.services, text)
	case "v1 Pod":
		var p *corev1.Pod
		if p, err = decode(new([]*corev1.Pod), text); err == nil {
			c.pods = append(c.pods, pod{p.Name, p.Namespace, p.Annotations, p.Labels, p.Spec})
		}
	case "batch/v1 Job":
		var j *batchv1.Job
		if j, err = decode(new([]*batchv1.Job), text); err == nil {
			c.pods = append(c.pods, pod{j.Name, j.Namespace, j.Spec.Template.Annotations, j.Spec.Template.Labels, j.Spec.Template.Spec})
		}
	case "apps/v1 DaemonSet":
		var d *appsv1.DaemonSet
		if d, err = decode(&c.daemonSets, text); err == nil {
			c.pods = append(c.pods, pod{d.Name, d.Namespace, d.Spec.Template.Annotations, d.Spec.Template.Labels, d.Spec.Template.Spec})
		}
	case "monitoring.coreos.com/v1 ServiceMonitor":
		_, err = decode(&c.monitors, text)
	case "resource.k8s.io/v1 DeviceClass":
		_, err = decode(&c.classes, text)
	case "resource.k8s.io/v1 ResourceClaimTemplate":
		_, err = decode(&c.templates, text)
	case "k8s.cni.cncf.io/v1 NetworkAttachmentDefinition":
		var n *networkAttachmentDefinition
		if n, err = decode(&c.networks, text); err == nil {
			err = c.addNetwork(n)
		}
	default:
		return fmt.Errorf("no type for %s", kind)
	}
	return err
}

// addNetwork decodes the configuration of a network as CNI runtimes do, and
// then strictly that of each plugin.
func (c *cluster) addNetwork(n *networkAttachmentDefinition) error {
	list, err := networkConf(n.Spec.Config)
	if err != nil {
		return err
	}
	if list.Name != n.Name {
		return fmt.Errorf("the configuration has another name: %s", list.Name)
	}
	for _, p := range list.Plugins {
		ours, common, err := pluginConf(p.Network.Type)
		if err != nil {
			return err
		}
		if err := strictly(p.Bytes, ours); err != nil {
			return fmt.Errorf("plugin %s: %w", p.Network.Type, err)
		}
		static := common.IPAM != nil && common.IPAM.Type == "static"
		if static != common.Capabilities["ips"] {
			return fmt.Errorf("plugin %s: static addresses need the capability ips, and only they", p.Network.Type)
		}
		c.plugins[n.Name] = append(c.plugins[n.Name], plugin{p.Network.Type, static})
	}
	return nil
}

// networkConf parses the configuration of a network. Multus takes that of a
// single plugin, too, of which it makes a list.
func networkConf(text string) (*libcni.NetworkConfigList, error) {
	head := struct {
		CNIVersion string            `json:"cniVersion"`
		Name       string            `json:"name"`
		Plugins    []json.RawMessage `json:"plugins,omitempty"`
	}{}
	if err := json.Unmarshal([]byte(text), &head); err != nil {
		return nil, err
	}
	if head.Plugins == nil {
		head.Plugins = []json.RawMessage{json.RawMessage(text)}
		list, err := json.Marshal(head)
		if err != nil {
			return nil, err
		}
		text = string(list)
	}
	return libcni.NetworkConfFromBytes([]byte(text))
}

// pluginConf returns a new configuration of a plugin, and what is in it of that
// which all have.
func pluginConf(kind string) (all any, common *conf, err error) {
	switch kind {
	case "macvlan":
		c := &macvlanConf{}
		return c, &c.conf, nil
	case "ipoib":
		c := &ipoibConf{}
		return c, &c.conf, nil
	case "sriov":
		c := &sriovConf{}
		return c, &c.conf, nil
	case "rdma":
		c := &rdmaConf{}
		return c, &c.conf, nil
	}
	return nil, nil, fmt.Errorf("no type for plugin %s", kind)
}

// strictly decodes JSON as Kubernetes' API server does where it is told to be
// strict: fields that the type lacks, twice or in other letters are errors.
func strictly(text []byte, into any) error {
	found, err := kjson.UnmarshalStrict(text, into)
	return errors.Join(append(found, err)...)
}

// Each file is of a folder's kustomization, and what kubectl would send is of
// the published types.
func TestFilesAreOfThePublishedTypes(t *testing.T) {
	all := readFiles(t)
	_, err := all.build()
	require.NoError(t, err)
	for path := range all {
		if name := filepath.Base(path); name != "kustomization.yaml" {
			require.Contains(t, all[filepath.Join(filepath.Dir(path), "kustomization.yaml")], "- "+name+"\n", path)
		}
	}
}

// So is what the guide shows.
func TestGuideIsOfThePublishedTypes(t *testing.T) {
	text, err := os.ReadFile("../../docs/guide/kubernetes.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	require.NotEmpty(t, blocks)
	c := &cluster{plugins: map[string][]plugin{}}
	for _, block := range blocks {
		require.NoError(t, c.add(block[1]), string(block[1]))
		require.Error(t, c.add(bytes.Replace(block[1], []byte("spec:"), []byte("specs:"), 1)))
	}
}

// wrong is a change of a file that must be found.
type wrong struct{ file, old, new, found string }

func (w wrong) in(t *testing.T) files {
	t.Helper()
	all := readFiles(t)
	require.Equal(t, 1, min(1, strings.Count(all[w.file], w.old)), "%s has no %q", w.file, w.old)
	all[w.file] = strings.ReplaceAll(all[w.file], w.old, w.new)
	return all
}

func TestWrongTypesAreFound(t *testing.T) {
	for _, w := range []wrong{
		{"shared/kustomization.yaml", "newTag", "tag", `unknown field "tag"`},
		{"shared/kustomization.yaml", "ipoib.yaml", "infiniband.yaml", "infiniband.yaml"},
		{"shared/doctor.yaml", "restartPolicy", "restart", `.restart"`},
		{"shared/doctor.yaml", "limits", "limit", `.limit"`},
		{"shared/doctor.yaml", "rdma/hca: 1", "rdma/hca: one", "quantities must match"},
		{"shared/doctor.yaml", "kind: Pod", "kind: Pods", "no type for v1 Pods"},
		{"shared/macvlan.yaml", "k8s.cni.cncf.io/v1", "k8s.cni.cncf.io/v2", "no type for k8s.cni.cncf.io/v2"},
		{"shared/macvlan.yaml", `"master"`, `"parent"`, `unknown field "parent"`},
		{"shared/macvlan.yaml", `"name": "rdma-macvlan"`, `"name": "macvlan"`, "another name"},
		{"shared/macvlan.yaml", `"macvlan"`, `"ipvlan"`, "no type for plugin ipvlan"},
		{"shared/macvlan.yaml", `"range_start"`, `"rangeStart"`, `ipam.rangeStart"`},
		{"shared/macvlan.yaml", `9000,`, `9000`, "invalid character"},
		{"sriov/network.yaml", `"rdma"}`, `"rdma", "mode": "exclusive"}`, `unknown field "mode"`},
		{"dra/dranet.yaml", "resource.k8s.io/v1", "resource.k8s.io/v1beta1", "no type for resource.k8s.io/v1beta1"},
		{"dra/dranet.yaml", "exactly", "exact", `.exact"`},
		{"dra/dranet.yaml", "expression", "expr", `.expr"`},
		{"exporter/exporter.yaml", "hostPID", "hostPid", `.hostPid"`},
		{"exporter/exporter.yaml", "clusterIP: None", "clusterIP: None\n  clusterIP: None", "clusterIP"},
		{"exporter/servicemonitor.yaml", "endpoints", "endpoint", `.endpoint"`},
		{"exporter/servicemonitor.yaml", "targetLabel", "target", `.target"`},
	} {
		_, err := w.in(t).build()
		require.ErrorContains(t, err, w.found, "%s: %q", w.file, w.new)
	}
}
