package ibverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sysfs is a folder with what the kernel says of each device.
type sysfs string

const kernelSysfs sysfs = "/sys/class/infiniband"

// devices returns the names of the kernel's devices, none without RDMA.
func (s sysfs) devices() (names []string) {
	entries, _ := os.ReadDir(string(s))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// gids returns the entries of a port's GID table that are not empty. They are
// without NetDevIndex, and NetDev may be the name of an interface of another
// network namespace.
func (s sysfs) gids(device string, port int, link LinkLayer) ([]GIDEntry, error) {
	files, err := os.ReadDir(s.port(device, port, "gids"))
	if err != nil {
		return nil, err
	}
	byIndex := make([]*GIDEntry, len(files))
	for _, f := range files {
		index, err := strconv.Atoi(f.Name())
		if err != nil || index < 0 || index >= len(byIndex) {
			return nil, fmt.Errorf("%s is no index of a table of %d", s.port(device, port, "gids", f.Name()), len(files))
		}
		e, err := s.gid(device, port, index, link)
		if errors.Is(err, ErrNoGID) {
			continue
		}
		if err != nil {
			return nil, err
		}
		byIndex[index] = &e
	}
	var entries []GIDEntry
	for _, e := range byIndex {
		if e != nil {
			entries = append(entries, *e)
		}
	}
	return entries, nil
}

// gid returns one entry. An empty one is ErrNoGID.
func (s sysfs) gid(device string, port, index int, link LinkLayer) (GIDEntry, error) {
	e := GIDEntry{Port: port, Index: index}
	text, err := s.read(device, port, "gids", index)
	if err != nil {
		return e, err
	}
	if e.GID, err = ParseGID(text); err != nil {
		return e, fmt.Errorf("%s: %w", s.port(device, port, "gids", strconv.Itoa(index)), err)
	}
	if e.GID.IsZero() {
		return e, fmt.Errorf("%s port %d: %w at index %d", device, port, ErrNoGID, index)
	}
	if text, err = s.optional(device, port, "gid_attrs/types", index); err != nil {
		return e, err
	}
	switch {
	case text == "RoCE v2":
		e.Type = GIDTypeRoCEv2
	case text != "" && text != "IB/RoCE v1":
		return e, fmt.Errorf("%s is of the unknown type %q",
			s.port(device, port, "gids", strconv.Itoa(index)), text)
	case link == LinkEthernet:
		e.Type = GIDTypeRoCEv1
	}
	e.NetDev, err = s.optional(device, port, "gid_attrs/ndevs", index)
	return e, err
}

func (s sysfs) port(device string, port int, names ...string) string {
	return filepath.Join(append([]string{string(s), device, "ports", strconv.Itoa(port)}, names...)...)
}

func (s sysfs) read(device string, port int, attr string, index int) (string, error) {
	b, err := os.ReadFile(s.port(device, port, attr, strconv.Itoa(index)))
	return strings.TrimSpace(string(b)), err
}

// optional reads what old kernels do not have, and what the kernel refuses to
// show, with EINVAL, where there is nothing to tell.
func (s sysfs) optional(device string, port int, attr string, index int) (string, error) {
	text, err := s.read(device, port, attr, index)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
		return "", nil
	}
	return text, err
}

// sysfsGID is QueryGIDEntry where C cannot be asked.
func (d *Device) sysfsGID(port, index int) (GIDEntry, error) {
	p, err := d.QueryPort(port)
	if err != nil {
		return GIDEntry{}, err
	}
	e, err := kernelSysfs.gid(d.Name(), port, index, p.LinkLayer)
	if err != nil {
		return GIDEntry{}, err
	}
	e.setNetDev(byName(e.NetDev))
	return e, nil
}

// sysfsGIDs is QueryGIDTable where C cannot be asked.
func (d *Device) sysfsGIDs(ports []int) ([]GIDEntry, error) {
	var all []GIDEntry
	for _, port := range ports {
		p, err := d.QueryPort(port)
		if err != nil {
			return nil, err
		}
		entries, err := kernelSysfs.gids(d.Name(), port, p.LinkLayer)
		if err != nil {
			return nil, err
		}
		for i := range entries {
			entries[i].setNetDev(byName(entries[i].NetDev))
		}
		all = append(all, entries...)
	}
	return all, nil
}
