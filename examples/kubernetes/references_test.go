// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// problems returns a text for each name in the objects that nothing has.
func (c *cluster) problems() (found []string) {
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	resources := c.resources(say)
	for _, n := range c.networks {
		if name := n.Annotations["k8s.v1.cni.cncf.io/resourceName"]; name != "" && !slices.Contains(resources, name) {
			say("network %s: no plugin has the resource %s", n.Name, name)
		}
	}
	for _, p := range c.pods {
		c.checkResources(p, resources, say)
		c.checkNetworks(p, say)
		c.checkClaims(p, say)
	}
	for _, t := range c.templates {
		c.checkTemplate(t, say)
	}
	c.checkMonitoring(say)
	return found
}

// printf is a function that takes a problem.
type printf func(format string, args ...any)

// resources returns the names that device plugins give to pods.
func (c *cluster) resources(say printf) (names []string) {
	for _, m := range c.configMaps {
		text := []byte(m.Data["config.json"])
		switch m.Name {
		case "rdma-devices":
			config := sharedPlugin{}
			if err := strictly(text, &config); err != nil {
				say("ConfigMap %s: %v", m.Name, err)
			}
			for _, r := range config.ConfigList {
				if r.ResourcePrefix == "" {
					r.ResourcePrefix = "rdma"
				}
				names = append(names, r.ResourcePrefix+"/"+r.ResourceName)
			}
		case "sriovdp-config":
			config := sriovPlugin{}
			if err := strictly(text, &config); err != nil {
				say("ConfigMap %s: %v", m.Name, err)
			}
			for _, r := range config.ResourceList {
				if !r.Selectors.IsRdma {
					say("ConfigMap %s: %s is without the files of RDMA", m.Name, r.ResourceName)
				}
				names = append(names, r.ResourcePrefix+"/"+r.ResourceName)
			}
		}
	}
	return names
}

// limits returns the names of a pod's resources that device plugins give.
func (p pod) limits() (names []string) {
	for _, container := range p.spec.Containers {
		for name := range container.Resources.Limits {
			if strings.Contains(string(name), "/") {
				names = append(names, string(name))
			}
		}
	}
	return names
}

func (c *cluster) checkResources(p pod, resources []string, say printf) {
	for _, name := range p.limits() {
		if !slices.Contains(resources, name) {
			say("%s: no plugin has the resource %s", p.name, name)
		}
	}
}

// selections returns the networks of a pod, in either form of the annotation.
func (p pod) selections() (all []networkSelection, err error) {
	text := p.annotations["k8s.v1.cni.cncf.io/networks"]
	if strings.HasPrefix(text, "[") {
		err = strictly([]byte(text), &all)
		return all, err
	}
	for name := range strings.SplitSeq(text, ",") {
		if name != "" {
			all = append(all, networkSelection{Name: name})
		}
	}
	return all, nil
}

func (c *cluster) checkNetworks(p pod, say printf) {
	selections, err := p.selections()
	if err != nil {
		say("%s: networks: %v", p.name, err)
	}
	for _, s := range selections {
		i := slices.IndexFunc(c.networks, func(n *networkAttachmentDefinition) bool { return n.Name == s.Name && n.Namespace == p.namespace })
		if i < 0 {
			say("%s: there is no network %s", p.name, s.Name)
			continue
		}
		if resource := c.networks[i].Annotations["k8s.v1.cni.cncf.io/resourceName"]; resource != "" && !slices.Contains(p.limits(), resource) {
			say("%s: network %s needs the resource %s", p.name, s.Name, resource)
		}
		if static := slices.ContainsFunc(c.plugins[s.Name], func(p plugin) bool { return p.static }); static != (len(s.IPs) > 0) {
			say("%s: addresses are for networks with static ones, and needed there", p.name)
		}
	}
}

func (c *cluster) checkClaims(p pod, say printf) {
	used := map[string]bool{}
	for _, container := range p.spec.Containers {
		for _, claim := range container.Resources.Claims {
			used[claim.Name] = true
			if !slices.ContainsFunc(p.spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return r.Name == claim.Name }) {
				say("%s: the pod has no claim %s", p.name, claim.Name)
			}
		}
	}
	for _, claim := range p.spec.ResourceClaims {
		if !used[claim.Name] {
			say("%s: no container uses the claim %s", p.name, claim.Name)
		}
		if !slices.ContainsFunc(c.templates, func(t *resourcev1.ResourceClaimTemplate) bool {
			return t.Name == *claim.ResourceClaimTemplateName && t.Namespace == p.namespace
		}) {
			say("%s: there is no template %s", p.name, *claim.ResourceClaimTemplateName)
		}
	}
}

func (c *cluster) checkTemplate(t *resourcev1.ResourceClaimTemplate, say printf) {
	classes := map[string]*resourcev1.DeviceClass{} // by the name of the request
	for _, r := range t.Spec.Spec.Devices.Requests {
		i := slices.IndexFunc(c.classes, func(d *resourcev1.DeviceClass) bool { return d.Name == r.Exactly.DeviceClassName })
		if i < 0 {
			say("template %s: there is no class %s", t.Name, r.Exactly.DeviceClassName)
			continue
		}
		classes[r.Name] = c.classes[i]
	}
	for _, config := range t.Spec.Spec.Devices.Config {
		for _, name := range config.Requests {
			class := classes[name]
			if class == nil {
				say("template %s: there is no request %s", t.Name, name)
				continue
			}
			if !strings.Contains(class.Spec.Selectors[0].CEL.Expression, fmt.Sprintf("device.driver == %q", config.Opaque.Driver)) {
				say("template %s: devices of the class %s are not of the driver %s", t.Name, class.Name, config.Opaque.Driver)
			}
		}
		c.checkParameters(t, config.Opaque, say)
	}
}

// checkParameters decodes the parameters of a driver.
func (c *cluster) checkParameters(t *resourcev1.ResourceClaimTemplate, config *resourcev1.OpaqueDeviceConfiguration, say printf) {
	var err error
	switch config.Driver {
	case "dra.net":
		err = strictly(config.Parameters.Raw, &dranetConfig{})
	case "sriovnetwork.k8snetworkplumbingwg.io":
		vf := vfConfig{}
		err = strictly(config.Parameters.Raw, &vf)
		if of := vf.APIVersion + " " + vf.Kind; of != config.Driver+"/v1alpha1 VfConfig" {
			say("template %s: no type for %s", t.Name, of)
		}
		if !slices.ContainsFunc(c.networks, func(n *networkAttachmentDefinition) bool {
			return n.Name == vf.NetAttachDefName && n.Namespace == t.Namespace
		}) {
			say("template %s: there is no network %s", t.Name, vf.NetAttachDefName)
		}
	default:
		say("template %s: no type for parameters of %s", t.Name, config.Driver)
	}
	if err != nil {
		say("template %s: parameters: %v", t.Name, err)
	}
}

// selects reports whether a selector, which is not empty, matches labels.
func selects(selector, labels map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return len(selector) > 0
}

func (c *cluster) checkMonitoring(say printf) {
	for _, d := range c.daemonSets {
		if !selects(d.Spec.Selector.MatchLabels, d.Spec.Template.Labels) {
			say("DaemonSet %s does not select its pods", d.Name)
		}
	}
	for _, s := range c.services {
		i := slices.IndexFunc(c.pods, func(p pod) bool { return selects(s.Spec.Selector, p.labels) && s.Namespace == p.namespace })
		if i < 0 {
			say("Service %s selects no pods", s.Name)
			continue
		}
		for _, port := range s.Spec.Ports {
			if !c.pods[i].hasPort(port.TargetPort, port.Port) {
				say("Service %s: the pods have no port %s", s.Name, port.TargetPort.String())
			}
		}
	}
	for _, m := range c.monitors {
		i := slices.IndexFunc(c.services, func(s *corev1.Service) bool {
			return selects(m.Spec.Selector.MatchLabels, s.Labels) && s.Namespace == m.Namespace
		})
		if i < 0 {
			say("ServiceMonitor %s selects no service", m.Name)
			continue
		}
		for _, e := range m.Spec.Endpoints {
			if !slices.ContainsFunc(c.services[i].Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port }) {
				say("ServiceMonitor %s: the service has no port %s", m.Name, e.Port)
			}
			if !slices.ContainsFunc(e.RelabelConfigs, func(r monitoringv1.RelabelConfig) bool { return r.TargetLabel == "node" }) {
				say("ServiceMonitor %s: samples have no label node", m.Name)
			}
		}
	}
}

// hasPort reports whether a container listens on a port, by name, and for a
// probe too.
func (p pod) hasPort(name intstr.IntOrString, number int32) bool {
	return slices.ContainsFunc(p.spec.Containers, func(container corev1.Container) bool {
		probe := container.ReadinessProbe
		return (probe == nil || probe.HTTPGet.Port == name) &&
			slices.ContainsFunc(container.Ports, func(port corev1.ContainerPort) bool { return port.Name == name.StrVal && port.ContainerPort == number })
	})
}

// Whatever a file names, a file has.
func TestFilesNameWhatThereIs(t *testing.T) {
	c, err := readFiles(t).build()
	require.NoError(t, err)
	require.Empty(t, c.problems())
	require.Len(t, c.daemonSets, 1)
	require.Len(t, c.monitors, 1)
	require.Len(t, c.networks, 5)
	require.Len(t, c.templates, 2)
	i := slices.IndexFunc(c.configMaps, func(m *corev1.ConfigMap) bool { return m.Labels["grafana_dashboard"] == "1" })
	require.GreaterOrEqual(t, i, 0)
	require.True(t, json.Valid([]byte(c.configMaps[i].Data["dashboard.json"])))
}

func TestWrongNamesAreFound(t *testing.T) {
	for _, w := range []wrong{
		{"shared/plugin.yaml", `"hca"`, `"cards"`, "no plugin has the resource rdma/hca"},
		{"shared/plugin.yaml", `"rdmaHcaMax"`, `"max"`, `.max"`},
		{"shared/doctor.yaml", "rdma-macvlan", "rdma-ipvlan", "there is no network rdma-ipvlan"},
		{"shared/macvlan.yaml", "namespace: default", "namespace: other", "there is no network rdma-macvlan"},
		{"sriov/plugin.yaml", `"isRdma": true`, `"isRdma": false`, "rdma_vf is without the files of RDMA"},
		{"sriov/plugin.yaml", `"rdma_vf"`, `"vf"`, "network rdma-sriov: no plugin has the resource verbena.example/rdma_vf"},
		{"sriov/plugin.yaml", `"pfNames"`, `"pf"`, `.pf"`},
		{"sriov/doctor.yaml", "verbena.example/rdma_vf: 1", "rdma/hca: 1", "network rdma-sriov needs the resource verbena.example/rdma_vf"},
		{"dra/dranet.yaml", "name: rdma.dra.net", "name: dra.net", "there is no class rdma.dra.net"},
		{"dra/dranet.yaml", `requests: ["card"]`, `requests: ["vf"]`, "there is no request vf"},
		{"dra/dranet.yaml", "driver: dra.net", "driver: net.dra", "not of the driver net.dra"},
		{"dra/dranet.yaml", "name: rdma0", "nam: rdma0", `.nam"`},
		{"dra/dranet.yaml", "resourceClaimTemplateName: rdma-dranet", "resourceClaimTemplateName: rdma", "there is no template rdma"},
		{"dra/dranet.yaml", "claims:\n          - name: rdma", "claims:\n          - name: card", "the pod has no claim card"},
		{"dra/dranet.yaml", "        claims:\n          - name: rdma", "        limits: {}", "no container uses the claim rdma"},
		{"dra/sriov.yaml", "kind: VfConfig", "kind: VFConfig", "no type for"},
		{"dra/sriov.yaml", "netAttachDefName: rdma-dra-sriov", "netAttachDefName: sriov", "there is no network sriov"},
		{"dra/sriov.yaml", "ifName: rdma0", "interface: rdma0", `unknown field "interface"`},
		{"exporter/exporter.yaml", "      labels:\n        app.kubernetes.io/name", "      labels:\n        name", "DaemonSet verbena-exporter does not select its pods"},
		{"exporter/exporter.yaml", "  selector:\n    app.kubernetes.io/name", "  selector:\n    name", "Service verbena-exporter selects no pods"},
		{"exporter/exporter.yaml", "targetPort: metrics", "targetPort: http", "the pods have no port http"},
		{"exporter/exporter.yaml", "port: 7479", "port: 7480", "the pods have no port metrics"},
		{"exporter/exporter.yaml", "port: metrics\n          securityContext", "port: http\n          securityContext", "the pods have no port metrics"},
		{"exporter/servicemonitor.yaml", "matchLabels:\n      app.kubernetes.io/name", "matchLabels:\n      name", "ServiceMonitor verbena-exporter selects no service"},
		{"exporter/servicemonitor.yaml", "port: metrics", "port: http", "the service has no port http"},
		{"exporter/servicemonitor.yaml", "targetLabel: node", "targetLabel: host", "samples have no label node"},
		{"selftest/jobs.yaml", "rdma-selftest", "rdma", "there is no network rdma"},
		{"selftest/jobs.yaml", `, "ips": ["192.0.2.11/24"]`, "", "addresses are for networks with static ones"},
	} {
		c, err := w.in(t).build()
		require.NoError(t, err, "%s: %q", w.file, w.new)
		require.Contains(t, strings.Join(c.problems(), "\n"), w.found, "%s: %q", w.file, w.new)
	}
}
