// SPDX-License-Identifier: Apache-2.0

package ibverbs

import "github.com/verbena-go/verbena/ibverbs/link"

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DeviceInfo holds everything that ibv_devinfo and show_gids print about a
// device. It can be marshaled to JSON and back.
type DeviceInfo struct {
	Device      DeviceEntry
	BoardID     string // card model, empty if the driver does not report it
	CompVectors int    // completion interrupt vectors
	Attr        DeviceAttr
	Ports       []PortInfo
}

// PortInfo holds everything that DeviceInfo has about a port.
type PortInfo struct {
	Port int
	PortAttr
	Rate   link.Speed // from PortAttr.Rate
	NetDev string     // network interface, empty if there is none
	GIDs   []GIDEntry // entries that are not empty
}

// QueryDeviceInfo opens the device with the given name, or the first device if
// name is empty, returns the result of QueryInfo, and closes the device. If
// there is no such device, the error matches ErrNoDevice.
func QueryDeviceInfo(name string) (DeviceInfo, error) {
	c, err := Open(name)
	if err != nil {
		return DeviceInfo{}, err
	}
	info, err := c.QueryInfo()
	return info, errors.Join(err, c.Close())
}

// QueryInfo returns the results of QueryDevice and CompVectors, and those of
// QueryPort, QueryPortGIDs and NetDev for all ports. It stops at the first
// error.
func (d *Device) QueryInfo() (DeviceInfo, error) {
	if err := d.self().Use(); err != nil {
		return DeviceInfo{}, err
	}
	defer d.object.Done()
	var info DeviceInfo
	var err error
	if info.Device, err = describe(d.raw.Device); err != nil {
		return info, wrap(d.Name(), err)
	}
	if info.BoardID, err = kernelSysfs.boardID(d.Name()); err != nil {
		return info, err
	}
	info.CompVectors = d.CompVectors()
	if info.Attr, err = d.QueryDevice(); err != nil {
		return info, err
	}
	gids, err := d.QueryGIDTable()
	if err != nil {
		return info, err
	}
	for port := 1; port <= info.Attr.Ports; port++ {
		p := PortInfo{Port: port}
		if p.PortAttr, err = d.QueryPort(port); err != nil {
			return info, err
		}
		p.Rate = p.PortAttr.Rate()
		for _, e := range gids {
			if e.Port == port {
				p.GIDs = append(p.GIDs, e)
			}
		}
		if p.NetDev, err = d.NetDev(port); err != nil {
			return info, err
		}
		info.Ports = append(info.Ports, p)
	}
	return info, nil
}

// boardID returns the driver's name for the card model.
func (s sysfs) boardID(device string) (string, error) {
	b, err := os.ReadFile(filepath.Join(string(s), device, "board_id"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}
