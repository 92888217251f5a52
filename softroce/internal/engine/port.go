// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// portNum is the number of the only port.
const portNum = 1

// The link of an active port: 4 lanes of 25 Gb/s.
const (
	width4X      = 2
	speedEDR     = 32
	speed        = 1000 // speed of the port in units of 100 Mb/s
	linkUp       = 5
	linkDisabled = 3
	grhRequired  = libibverbs.IBV_QPF_GRH_REQUIRED
	virtualLanes = 1
	portCaps     = libibverbs.IBV_PORT_CM_SUP | libibverbs.IBV_PORT_IP_BASED_GIDS
)

// PortAttr returns what ibv_query_port returns. It fails with EINVAL if the
// port does not exist.
func (d *Device) PortAttr(port uint32) (libibverbs.PortAttr, error) {
	if err := d.checkPort(port); err != nil {
		return libibverbs.PortAttr{}, err
	}
	a := libibverbs.PortAttr{
		State: libibverbs.IBV_PORT_ACTIVE, PhysState: linkUp, MaxMtu: d.limits.MTU, ActiveMtu: d.config.MTU,
		GidTblLen: gidTableSize, PkeyTblLen: 1, PortCapFlags: portCaps, MaxMsgSz: maxMessage, MaxVlNum: virtualLanes,
		ActiveWidth: width4X, ActiveSpeed: speedEDR, ActiveSpeedEx: speedEDR,
		LinkLayer: uint8(libibverbs.IBV_LINK_LAYER_ETHERNET), Flags: uint8(grhRequired),
	}
	if d.down {
		a.State, a.PhysState = libibverbs.IBV_PORT_DOWN, linkDisabled
	}
	return a, nil
}

// checkPort returns EINVAL if the port does not exist, and EIO if the device
// was removed.
func (d *Device) checkPort(port uint32) error {
	if err := d.check(); err != nil {
		return err
	}
	if port != portNum {
		return syscall.EINVAL
	}
	return nil
}

// PortSpeed returns what ibv_query_port_speed returns, in units of 100 Mb/s. It
// fails with EINVAL if the port does not exist.
func (d *Device) PortSpeed(port uint32) (uint64, error) {
	if err := d.checkPort(port); err != nil {
		return 0, err
	}
	return speed, nil
}

// SetPort brings the port up or down. A change reports an asynchronous event.
// While the port is down, packets are lost in both directions.
func (d *Device) SetPort(up bool) {
	if d.gone || d.down != up {
		return
	}
	d.down = !up
	t := libibverbs.IBV_EVENT_PORT_ERR
	if up {
		t = libibverbs.IBV_EVENT_PORT_ACTIVE
	}
	d.event(t, portNum)
}

// PKey returns entry index of the port's P_Key table, which has one entry. Like
// ibv_query_pkey, it fails with ENOENT if the port or the entry does not exist.
func (d *Device) PKey(port uint32, index int) (uint16, error) {
	if err := d.check(); err != nil {
		return 0, err
	}
	if port != portNum || index != 0 {
		return 0, syscall.ENOENT
	}
	return defaultPKey, nil
}
