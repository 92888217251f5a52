package ibverbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// knownAccess are the flags that some device may know; a device ignores those
// of the optional range that it does not.
const knownAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessWindowBind |
	AccessZeroBased | AccessOnDemand | AccessHugeTLB | AccessFlushGlobal | AccessFlushPersistent |
	AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

// accessNames are the names of the flags in messages.
var accessNames = []struct {
	flag AccessFlags
	name string
}{
	{AccessLocalWrite, "AccessLocalWrite"},
	{AccessRemoteWrite, "AccessRemoteWrite"},
	{AccessRemoteAtomic, "AccessRemoteAtomic"},
	{AccessRemoteRead, "AccessRemoteRead"},
	{AccessWindowBind, "AccessWindowBind"},
	{AccessZeroBased, "AccessZeroBased"},
	{AccessOnDemand, "AccessOnDemand"},
	{AccessHugeTLB, "AccessHugeTLB"},
	{AccessFlushGlobal, "AccessFlushGlobal"},
	{AccessFlushPersistent, "AccessFlushPersistent"},
	{AccessRelaxedOrdering, "AccessRelaxedOrdering"},
}

// accessName names the first of the flags, as this package does.
func accessName(a AccessFlags) string {
	for _, n := range accessNames {
		if a&n.flag != 0 {
			return n.name
		}
	}
	return a.String()
}

// accessProblem says why no region can have the flags, "" if one may.
func accessProblem(a AccessFlags) string {
	if unknown := a &^ knownAccess; unknown != 0 {
		return fmt.Sprintf("unknown access flags %#x", uint32(unknown))
	}
	if writing := a & (AccessRemoteWrite | AccessRemoteAtomic); writing != 0 && a&AccessLocalWrite == 0 {
		return accessName(writing) + " without AccessLocalWrite"
	}
	if a&AccessHugeTLB != 0 && a&AccessOnDemand == 0 {
		return "AccessHugeTLB without AccessOnDemand"
	}
	return ""
}

// badMR is a region that op cannot make.
func badMR(op string, pd *PD, format string, args ...any) error {
	return cerr.Refuse(op, pd.object.Name(), format, args...)
}

// checkOnDemand asks the device, where it answers, whether it can page on
// demand: the kernel would only say that an argument is invalid.
func (pd *PD) checkOnDemand(op string, need libibverbs.OdpGeneralCaps) error {
	var attr libibverbs.DeviceAttrEx
	if err := libibverbs.QueryDeviceEx(pd.device.raw, nil, &attr); err != nil {
		return nil
	}
	if libibverbs.OdpGeneralCaps(attr.OdpCaps.GeneralCaps)&need == need {
		return nil
	}
	what := "AccessOnDemand"
	if need&libibverbs.IBV_ODP_SUPPORT_IMPLICIT != 0 {
		what += " for the whole address space"
	}
	return cerr.Argument(op, pd.object.Name(), cerr.InvalidAs(syscall.EOPNOTSUPP, "the device has no %s", what))
}
