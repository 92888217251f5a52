// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// Device is what a device says about itself, without what identifies it.
type Device struct {
	Driver     string  `json:"driver"` // of the kernel, or softroce for the device in user space
	Limits     string  `json:"limits,omitempty"`
	Board      string  `json:"board,omitempty"`
	VendorID   uint32  `json:"vendor_id"`
	PartID     uint32  `json:"vendor_part_id"`
	Hardware   uint32  `json:"hardware_version"`
	Firmware   string  `json:"firmware,omitempty"`
	Transport  string  `json:"transport"`
	LinkLayer  string  `json:"link_layer"`
	GIDType    string  `json:"gid_type,omitempty"`
	RateGbps   float64 `json:"rate_gbps"`
	MTU        int     `json:"mtu"`
	Attributes Limits  `json:"attributes"`
}

// Limits are attributes of the device.
type Limits struct {
	MaxQP          int    `json:"max_qp"`
	MaxQPWR        int    `json:"max_qp_wr"`
	MaxSGE         int    `json:"max_sge"`
	MaxSGERead     int    `json:"max_sge_read"`
	MaxCQ          int    `json:"max_cq"`
	MaxCQE         int    `json:"max_cqe"`
	MaxMR          int    `json:"max_mr"`
	MaxPD          int    `json:"max_pd"`
	MaxReads       int    `json:"max_qp_read_atomic"`
	MaxReadsInit   int    `json:"max_qp_init_read_atomic"`
	MaxMW          int    `json:"max_mw"`
	MaxAH          int    `json:"max_ah"`
	MaxSRQ         int    `json:"max_srq"`
	MaxSRQWR       int    `json:"max_srq_wr"`
	MaxGroups      int    `json:"max_mcast_groups"`
	Atomics        string `json:"atomics"`
	Capabilities   string `json:"capabilities"`
	OnDemand       string `json:"on_demand_paging"`
	CompVectors    int    `json:"comp_vectors"`
	LocalAckDelay  int    `json:"local_ack_delay"`
	MaxMessageSize int64  `json:"max_message_bytes"`
}

// KindOf returns the kind of a device.
func KindOf(name string) check.Kind {
	if device, _, _ := strings.Cut(os.Getenv("VERBENA_DEVICE"), ":"); device == "soft" {
		return check.UserSpace
	}
	if driverOf("/", name) == softRoCE {
		return check.SoftRoCE
	}
	return check.Card
}

// softRoCE is the name of the driver of Soft-RoCE.
const softRoCE = "rdma_rxe"

// driverOf returns the name of a device's driver, in the files of a machine.
// The devices of Soft-RoCE, which have no hardware, alone have a file parent.
func driverOf(root, device string) string {
	folder := filepath.Join(root, "sys/class/infiniband", device)
	if link, err := os.Readlink(filepath.Join(folder, "device/driver")); err == nil {
		return filepath.Base(link)
	}
	if _, err := os.Stat(filepath.Join(folder, "parent")); err == nil {
		return softRoCE
	}
	return "unknown"
}

// Describe describes a device and one of its ports.
func Describe(info ibverbs.DeviceInfo, port int, kind check.Kind) (Device, error) {
	i := port - 1
	if i < 0 || i >= len(info.Ports) {
		return Device{}, fmt.Errorf("the device has %d ports", len(info.Ports))
	}
	p, a := info.Ports[i], info.Attr
	d := Device{
		Driver: driverOf("/", info.Device.Name), Board: info.BoardID, VendorID: a.VendorID, PartID: a.VendorPartID,
		Hardware: a.HardwareVersion, Firmware: a.FirmwareVersion, Transport: fmt.Sprint(info.Device.Transport), LinkLayer: fmt.Sprint(p.LinkLayer),
		RateGbps: float64(p.Rate), MTU: p.ActiveMTU.Bytes(),
		Attributes: Limits{
			MaxQP: a.MaxQP, MaxQPWR: a.MaxQPWR, MaxSGE: a.MaxSGE, MaxSGERead: a.MaxSGERead, MaxCQ: a.MaxCQ, MaxCQE: a.MaxCQE, MaxMR: a.MaxMR,
			MaxPD: a.MaxPD, MaxReads: a.MaxQPReadAtomic, MaxReadsInit: a.MaxQPInitReadAtomic, MaxMW: a.MaxMW, MaxAH: a.MaxAH, MaxSRQ: a.MaxSRQ,
			MaxSRQWR: a.MaxSRQWR, MaxGroups: a.MaxMcastGroups, Atomics: fmt.Sprint(a.AtomicCap), Capabilities: fmt.Sprint(a.Capabilities),
			OnDemand: fmt.Sprint(a.ODP.General), CompVectors: info.CompVectors, LocalAckDelay: int(a.LocalAckDelay), MaxMessageSize: int64(p.MaxMessageSize),
		},
	}
	if kind == check.UserSpace {
		d.Driver, d.Limits = "softroce", os.Getenv("VERBENA_LIMITS")
	}
	for _, g := range p.GIDs {
		if d.GIDType == "" || g.Type == ibverbs.GIDTypeRoCEv2 { // which Verbena prefers
			d.GIDType = g.Type.String()
		}
	}
	return d, nil
}

// title names the device for a reader.
func (d Device) title() string {
	text := d.Driver
	switch {
	case d.Driver == "softroce" && d.Limits != "":
		text = "the device in user space with the limits " + d.Limits
	case d.Driver == "softroce":
		text = "the device in user space"
	case d.Driver == softRoCE:
		text = "Soft-RoCE"
	}
	if d.Board != "" {
		text += " " + d.Board
	}
	if d.Firmware != "" {
		text += ", firmware " + d.Firmware
	}
	return text
}

// network describes the port for a reader.
func (d Device) network() string {
	kind := d.GIDType
	if kind == "" {
		kind = d.LinkLayer
	}
	if d.RateGbps == 0 {
		return fmt.Sprintf("%s, MTU %d", kind, d.MTU)
	}
	return fmt.Sprintf("%s, %g Gb/s, MTU %d", kind, d.RateGbps, d.MTU)
}
