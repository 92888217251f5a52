// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	whereabouts "github.com/k8snetworkplumbingwg/whereabouts/pkg/types"
)

// The types below are of modules that the proxy of Go modules does not serve,
// or that need many others. They have the fields that the files here use, as
// these projects' sources name them.

// networkAttachmentDefinition is of k8s.cni.cncf.io/v1.
type networkAttachmentDefinition struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Config string `json:"config"`
	} `json:"spec"`
}

// networkSelection is an element of a pod's annotation for Multus.
type networkSelection struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
}

// sharedPlugin is the configuration of k8s-rdma-shared-dev-plugin.
type sharedPlugin struct {
	PeriodicUpdateInterval int `json:"periodicUpdateInterval"`
	ConfigList             []struct {
		ResourceName   string `json:"resourceName"`
		ResourcePrefix string `json:"resourcePrefix"` // "rdma" if empty
		RdmaHcaMax     int    `json:"rdmaHcaMax"`
		Selectors      struct {
			Vendors   []string `json:"vendors"`
			DeviceIDs []string `json:"deviceIDs"`
			Drivers   []string `json:"drivers"`
			IfNames   []string `json:"ifNames"`
			LinkTypes []string `json:"linkTypes"`
		} `json:"selectors"`
	} `json:"configList"`
}

// sriovPlugin is the configuration of sriov-network-device-plugin.
type sriovPlugin struct {
	ResourceList []struct {
		ResourcePrefix string `json:"resourcePrefix"`
		ResourceName   string `json:"resourceName"`
		Selectors      struct {
			Vendors []string `json:"vendors"`
			Devices []string `json:"devices"`
			Drivers []string `json:"drivers"`
			PFNames []string `json:"pfNames"`
			IsRdma  bool     `json:"isRdma"`
		} `json:"selectors"`
	} `json:"resourceList"`
}

// The configurations of CNI plugins, by their type.
type (
	macvlanConf struct {
		Master string `json:"master"`
		Mode   string `json:"mode"`
		MTU    int    `json:"mtu"`
		conf
	}
	ipoibConf struct {
		Master string `json:"master"`
		conf
	}
	sriovConf struct{ conf }
	rdmaConf  struct{ conf }
)

// conf is what all plugins have.
type conf struct {
	CNIVersion   string          `json:"cniVersion"`
	Name         string          `json:"name"`
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	IPAM         *struct {
		whereaboutsIPAM
	} `json:"ipam"`
}

// whereaboutsIPAM has the fields of the published type, but not its method
// UnmarshalJSON, which takes unknown fields. "type": "static" needs no more.
type whereaboutsIPAM whereabouts.IPAMConfig

// dranetConfig are the parameters of the driver dra.net.
type dranetConfig struct {
	Interface struct {
		Name      string   `json:"name"`
		Addresses []string `json:"addresses"`
		MTU       int      `json:"mtu"`
	} `json:"interface"`
}

// vfConfig are the parameters of the driver
// sriovnetwork.k8snetworkplumbingwg.io.
type vfConfig struct {
	metav1.TypeMeta  `json:",inline"`
	Driver           string `json:"driver"`
	IfName           string `json:"ifName"`
	NetAttachDefName string `json:"netAttachDefName"`
}
