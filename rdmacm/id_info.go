package rdmacm

import "time"

// bindInfo gives the id the source as its address.
func (id *ID) bindInfo(info AddrInfo) error {
	if info.Family == FamilyIB {
		return id.BindIB(info.SrcIB)
	}
	return id.BindAddr(info.Src)
}

// resolveInfo starts to find the device and the hardware address for the
// destination.
func (id *ID) resolveInfo(info AddrInfo, timeout time.Duration) error {
	if info.Family != FamilyIB {
		return id.ResolveAddr(info.Src, info.Dst, timeout)
	}
	var src *IBAddr
	if info.SrcIB != (IBAddr{}) {
		src = &info.SrcIB
	}
	return id.ResolveIB(src, info.DstIB, timeout)
}

// routeInfo starts to find the path to the destination, unless that is known.
func (id *ID) routeInfo(info AddrInfo, timeout time.Duration) error {
	if len(info.Paths) > 0 {
		return id.SetIBPaths(info.Paths...)
	}
	return id.ResolveRoute(timeout)
}
