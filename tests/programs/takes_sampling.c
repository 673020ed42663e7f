/* An agent of the JVM that takes the sampler of objects for itself, as only one may: at the start, or in a running JVM. Build with
 * -shared -fPIC. */
#include <stdint.h>
#include <stdio.h>

typedef void *const *const *environment;

enum { VM_GET_ENV = 6, ADD_CAPABILITIES = 141, JVMTI_VERSION_11 = 0x300b0000, CAN_SAMPLE = 43 };

int32_t Agent_OnLoad(environment vm, char *options, void *reserved)
{
    void *env = NULL;
    unsigned char wanted[16] = {0};
    (void)options;
    (void)reserved;
    wanted[CAN_SAMPLE / 8] = 1u << CAN_SAMPLE % 8;
    if (((int32_t (*)(environment, void **, int32_t))(*vm)[VM_GET_ENV])(vm, &env, JVMTI_VERSION_11) != 0)
        return 1;
    environment jvmti = env;
    int32_t error = ((int32_t (*)(environment, void *))(*jvmti)[ADD_CAPABILITIES])(jvmti, wanted);
    printf("sampler: %s\n", error == 0 ? "taken" : "refused");
    fflush(stdout);
    return 0;
}

int32_t Agent_OnAttach(environment vm, char *options, void *reserved)
{
    return Agent_OnLoad(vm, options, reserved);
}
