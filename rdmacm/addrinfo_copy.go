package rdmacm

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
)

// addrInfos copies a list of C's.
func addrInfos(list *librdmacm.Addrinfo) []AddrInfo {
	var infos []AddrInfo
	for raw := list; raw != nil; raw = raw.AiNext {
		infos = append(infos, addrInfo(raw))
	}
	return infos
}

func addrInfo(raw *librdmacm.Addrinfo) AddrInfo {
	a := AddrInfo{
		Flags: AddrInfoFlags(raw.AiFlags), Family: Family(raw.AiFamily),
		QPType: ibverbs.QPType(raw.AiQpType), PortSpace: PortSpace(raw.AiPortSpace),
		SrcName: cString(raw.AiSrcCanonname), DstName: cString(raw.AiDstCanonname),
		Connect: append([]byte(nil), unsafe.Slice((*byte)(raw.AiConnect), raw.AiConnectLen)...),
	}
	if raw.AiSrcAddr != nil {
		a.Src, a.SrcIB = addrPort(raw.AiSrcAddr), ibAddr(raw.AiSrcAddr)
	}
	if raw.AiDstAddr != nil {
		a.Dst, a.DstIB = addrPort(raw.AiDstAddr), ibAddr(raw.AiDstAddr)
	}
	var path libibverbs.PathData
	n := raw.AiRouteLen / uint64(unsafe.Sizeof(path))
	a.Paths = append(a.Paths, unsafe.Slice((*libibverbs.PathData)(raw.AiRoute), n)...)
	return a
}

// cString copies a string of C's, which may be nil.
func cString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
