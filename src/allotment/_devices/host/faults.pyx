from allotment._core.contract.types cimport address_t, bytes_t

cdef extern from *:
    """
    #include <signal.h>
    #include <stdint.h>
    #include <string.h>
    #include <unistd.h>

    enum { ALLOTMENT_ASLEEP_MOST = 1024, ALLOTMENT_WORDS = 96 };
    typedef struct { volatile uint64_t base, size; char words[ALLOTMENT_WORDS]; } AllotmentAsleep;
    static AllotmentAsleep allotment_asleep[ALLOTMENT_ASLEEP_MOST];
    static struct sigaction allotment_fault_before;
    static int allotment_fault_handled = 0;

    static void allotment_say(const char* text) {
        ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
        (void) ignored;
    }

    static void allotment_fault(int number, siginfo_t* info, void* context) {
        uint64_t address = (uint64_t) info->si_addr;
        (void) context;
        for (int i = 0; i < ALLOTMENT_ASLEEP_MOST; i++) {
            if (allotment_asleep[i].base != 0 && address - allotment_asleep[i].base < allotment_asleep[i].size) {
                allotment_say("allotment: memory of ");
                allotment_say(allotment_asleep[i].words);
                allotment_say(" was touched while it is paused; resume it first\\n");
                break;
            }
        }
        /* The instruction runs again, and faults for the previous handler. A signal that was sent is sent again. */
        sigaction(number, &allotment_fault_before, NULL);
        allotment_fault_handled = 0;
        if (info->si_code <= 0) raise(number);
    }

    static int allotment_note_asleep(uint64_t base, uint64_t size, const char* words) {
        struct sigaction action;
        for (int i = 0; i < ALLOTMENT_ASLEEP_MOST; i++) {
            if (allotment_asleep[i].base == 0) {
                strncpy(allotment_asleep[i].words, words, ALLOTMENT_WORDS - 1);
                allotment_asleep[i].size = size;
                allotment_asleep[i].base = base;
                if (!allotment_fault_handled) {
                    memset(&action, 0, sizeof(action));
                    action.sa_sigaction = allotment_fault;
                    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
                    sigemptyset(&action.sa_mask);
                    allotment_fault_handled = sigaction(SIGSEGV, &action, &allotment_fault_before) == 0;
                }
                return 1;
            }
        }
        return 0;
    }

    static void allotment_forget_asleep(uint64_t base) {
        for (int i = 0; i < ALLOTMENT_ASLEEP_MOST; i++)
            if (allotment_asleep[i].base == base) allotment_asleep[i].base = 0;
    }
    """
    int allotment_note_asleep(address_t base, bytes_t size, const char* words) noexcept nogil
    void allotment_forget_asleep(address_t base) noexcept nogil


cdef bint note_asleep(address_t base, bytes_t size, const char* words) noexcept nogil:
    return allotment_note_asleep(base, size, words) != 0


cdef void forget_asleep(address_t base) noexcept nogil:
    allotment_forget_asleep(base)
