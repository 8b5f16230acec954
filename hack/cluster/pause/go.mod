// What keeps the namespaces of a pod.
module dgym.dev/hack/cluster/pause

go 1.21
